"""The commands of `foreword train`."""
