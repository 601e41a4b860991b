"""Linear algebra and objectives over matrices."""
