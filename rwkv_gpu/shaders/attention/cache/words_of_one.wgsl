// Keys and values are read and written word by word: a head in blocks is no multiple of 16 bytes.
alias CacheWord = u32;
