"""The store on Amazon DynamoDB: one table with one index."""
