"""Load measurement of servers: the same requests over HTTP to ours and others."""
