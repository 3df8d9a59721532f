"""What attempts have printed: records, and the part of a store that keeps them."""
