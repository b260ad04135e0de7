// 8 dims of a key or a value as they lie: float32.
// needs attention/eight: Eight
alias Half = vec4u;     // 4 dims

const RAW_WORDS = 8u;
const LAST_AGAIN = false;

struct Raw {
    low: Half,
    high: Half,
}

fn raw_key(head: u32, c: u32) -> Raw {
    let i = head * (N / 4u) + 2u * c;
    return Raw(keys[i], keys[i + 1u]);
}

fn raw_value(head: u32, c: u32) -> Raw {
    let i = head * (N / 4u) + 2u * c;
    return Raw(values[i], values[i + 1u]);
}

// The row's own key and value, 8 dims.
fn write_own(head: u32, c: u32) {
    let i = head * (N / 4u) + 2u * c;
    let key = own8(2u * c);
    let value = own8(N / 4u + 2u * c);
    keys[i] = key.low;
    keys[i + 1u] = key.high;
    values[i] = value.low;
    values[i + 1u] = value.high;
}

fn eight_of(raw: Raw) -> Eight { return Eight(bitcast<vec4f>(raw.low), bitcast<vec4f>(raw.high)); }

fn scale_of(_raw: Raw, _c: u32) -> f32 { return 1.0; }

fn half_of(x: vec4f) -> Half { return bitcast<vec4u>(x); }

fn rotate_own(_block: u32) {}

// 8 dims of the row's own key or value: vec4s i and i + 1 of `own`.
fn own8(i: u32) -> Raw { return Raw(own[i], own[i + 1u]); }
