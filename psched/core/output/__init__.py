"""What attempts have printed: records, and the capability of a store to keep them."""
