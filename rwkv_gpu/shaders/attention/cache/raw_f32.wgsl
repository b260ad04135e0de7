// 8 dims of a key or a value as they lie: float32.
// needs attention/eight: Eight
alias Half = vec4u;     // 4 dims

struct Raw {
    low: Half,
    high: Half,
}

fn raw_key(i: u32) -> Raw { return Raw(keys[2u * i], keys[2u * i + 1u]); }

fn raw_value(i: u32) -> Raw { return Raw(values[2u * i], values[2u * i + 1u]); }

// The row's own key and value to the place of 8 dims.
fn write_own(i: u32) {
    let c = i % (N / 8u);
    let key = own8(2u * c);
    let value = own8(N / 4u + 2u * c);
    keys[2u * i] = key.low;
    keys[2u * i + 1u] = key.high;
    values[2u * i] = value.low;
    values[2u * i + 1u] = value.high;
}

fn eight_of(raw: Raw) -> Eight { return Eight(bitcast<vec4f>(raw.low), bitcast<vec4f>(raw.high)); }

fn half_of(x: vec4f) -> Half { return bitcast<vec4u>(x); }

// 8 dims of the row's own key or value: vec4s i and i + 1 of `own`.
fn own8(i: u32) -> Raw { return Raw(own[i], own[i + 1u]); }
