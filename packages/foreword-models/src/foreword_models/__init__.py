"""The small models that Foreword uses where none is named: only files."""
