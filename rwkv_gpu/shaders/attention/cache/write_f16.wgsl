// Keys and values as halves, two to a word.
fn put_key(i: u32, _t: u32, _head: u32, x: Eight) { keys[i] = packed(x); }

fn put_value(i: u32, _t: u32, _head: u32, x: Eight) { values[i] = packed(x); }

fn packed(x: Eight) -> vec4u {
    return vec4u(
        pack2x16float(x.low.xy), pack2x16float(x.low.zw),
        pack2x16float(x.high.xy), pack2x16float(x.high.zw),
    );
}
