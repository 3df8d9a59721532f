"""The store on Amazon SimpleDB, on which PerfectQueue ran: one domain."""
