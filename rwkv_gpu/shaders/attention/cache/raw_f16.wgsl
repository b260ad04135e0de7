// 8 dims of a key or a value as they lie: halves, two to a word.
// needs attention/eight: Eight
// needs read: halves
alias Raw = vec4u;
alias Half = vec2u;     // 4 dims

const RAW_WORDS = 4u;
const LAST_AGAIN = false;   // whether decode loads a run's last block of positions again, rather than branch around what comes next

fn raw_key(head: u32, c: u32) -> Raw { return keys[head * (N / 8u) + c]; }

fn raw_value(head: u32, c: u32) -> Raw { return values[head * (N / 8u) + c]; }

// The row's own key and value, 8 dims.
fn write_own(head: u32, c: u32) {
    keys[head * (N / 8u) + c] = own8(2u * c);
    values[head * (N / 8u) + c] = own8(N / 4u + 2u * c);
}

fn eight_of(raw: Raw) -> Eight { return Eight(halves(raw.xy), halves(raw.zw)); }

fn scale_of(_raw: Raw, _c: u32) -> f32 { return 1.0; }

fn half_of(x: vec4f) -> Half { return vec2u(pack2x16float(x.xy), pack2x16float(x.zw)); }

fn rotate_own(_block: u32) {}

// 8 dims of the row's own key or value: vec4s i and i + 1 of `own`.
fn own8(i: u32) -> Raw { return vec4u(own[i], own[i + 1u]); }
