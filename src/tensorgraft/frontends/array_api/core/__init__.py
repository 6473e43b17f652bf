"""Arrays: what they are, where they are, what they are promoted to, and how they are indexed."""
