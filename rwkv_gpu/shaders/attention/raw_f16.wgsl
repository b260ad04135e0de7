// 8 dims of a key or a value as they lie: halves, two to a word.
alias Raw = vec4u;

fn raw_key(i: u32) -> Raw { return keys[i]; }

fn raw_value(i: u32) -> Raw { return values[i]; }

fn eight_of(raw: Raw) -> Eight { return Eight(halves(raw.xy), halves(raw.zw)); }

// What a page makes of it.
fn kept(x: Eight) -> Eight { return eight_of(packed(x)); }
