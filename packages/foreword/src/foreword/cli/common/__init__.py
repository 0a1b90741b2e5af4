"""What several commands share: process setup, options, rendering, sessions."""
