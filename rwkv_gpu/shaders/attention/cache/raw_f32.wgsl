// 8 dims of a key or a value as they lie: float32.
// needs attention/eight: Eight
alias Half = vec4u;     // 4 dims

struct Raw {
    low: Half,
    high: Half,
}

fn raw_key(i: u32) -> Raw { return Raw(keys[2u * i], keys[2u * i + 1u]); }

fn raw_value(i: u32) -> Raw { return Raw(values[2u * i], values[2u * i + 1u]); }

fn write_raw(i: u32, key: Raw, value: Raw) {
    keys[2u * i] = key.low;
    keys[2u * i + 1u] = key.high;
    values[2u * i] = value.low;
    values[2u * i + 1u] = value.high;
}

fn eight_of(raw: Raw) -> Eight { return Eight(bitcast<vec4f>(raw.low), bitcast<vec4f>(raw.high)); }

fn half_of(x: vec4f) -> Half { return bitcast<vec4u>(x); }

fn whole_of(low: Half, high: Half) -> Raw { return Raw(low, high); }
