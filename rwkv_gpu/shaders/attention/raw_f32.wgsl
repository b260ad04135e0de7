// 8 dims of a key or a value as they lie: float32.
struct Raw {
    low: vec4u,
    high: vec4u,
}

fn raw_key(i: u32) -> Raw { return Raw(keys[2u * i], keys[2u * i + 1u]); }

fn raw_value(i: u32) -> Raw { return Raw(values[2u * i], values[2u * i + 1u]); }

fn eight_of(raw: Raw) -> Eight { return Eight(bitcast<vec4f>(raw.low), bitcast<vec4f>(raw.high)); }

// What a page makes of it.
fn kept(x: Eight) -> Eight { return x; }
