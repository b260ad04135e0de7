"""One server on several devices: a process for each, behind one port."""
