"""Speech targets: sound in, text out."""
