// 8 dims of a key or a value as they lie: halves, two to a word.
// needs attention/eight: Eight
// needs read: halves
alias Raw = vec4u;
alias Half = vec2u;     // 4 dims

fn raw_key(i: u32) -> Raw { return keys[i]; }

fn raw_value(i: u32) -> Raw { return values[i]; }

fn write_raw(i: u32, key: Raw, value: Raw) {
    keys[i] = key;
    values[i] = value;
}

fn eight_of(raw: Raw) -> Eight { return Eight(halves(raw.xy), halves(raw.zw)); }

fn half_of(x: vec4f) -> Half { return vec2u(pack2x16float(x.xy), pack2x16float(x.zw)); }

fn whole_of(low: Half, high: Half) -> Raw { return vec4u(low, high); }
