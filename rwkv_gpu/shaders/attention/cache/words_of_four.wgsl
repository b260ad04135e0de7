// Keys and values are read and written 16 bytes at a time.
alias CacheWord = vec4u;
