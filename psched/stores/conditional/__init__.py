"""What all stores on services with conditional writes share; `psched.stores.dynamodb` is one.

Such a service has no SQL, no transactions and no clock that a request could read. It can do this: a
write of one item takes place only if the item still is as it was read. So this store reads a row,
applies the rules of `psched.stores.plain.PlainStore` to it, and writes the row if it is unchanged;
else it begins again.
"""
