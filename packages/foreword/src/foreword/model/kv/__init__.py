"""Keys and values: pages, the texts they belong to, and reads laid out in them."""
