"""What a process needs: threads, free memory, transactions, copies to a device."""
