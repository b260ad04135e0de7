// 8 dims of a key or a value as they lie: halves, two to a word.
// needs attention/eight: Eight
// needs read: halves
alias Raw = vec4u;
alias Half = vec2u;     // 4 dims

fn raw_key(i: u32) -> Raw { return keys[i]; }

fn raw_value(i: u32) -> Raw { return values[i]; }

// The row's own key and value to the place of 8 dims.
fn write_own(i: u32) {
    let c = i % (N / 8u);
    keys[i] = own8(2u * c);
    values[i] = own8(N / 4u + 2u * c);
}

fn eight_of(raw: Raw) -> Eight { return Eight(halves(raw.xy), halves(raw.zw)); }

fn half_of(x: vec4f) -> Half { return vec2u(pack2x16float(x.xy), pack2x16float(x.zw)); }

// 8 dims of the row's own key or value: vec4s i and i + 1 of `own`.
fn own8(i: u32) -> Raw { return vec4u(own[i], own[i + 1u]); }
