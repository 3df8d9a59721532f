"""The worker: it leases due rows and watches over the tasks that it runs on them."""
