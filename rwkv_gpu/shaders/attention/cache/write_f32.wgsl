// Keys and values as float32.
fn put_key(i: u32, _t: u32, _head: u32, x: Eight) {
    keys[2u * i] = bitcast<vec4u>(x.low);
    keys[2u * i + 1u] = bitcast<vec4u>(x.high);
}

fn put_value(i: u32, _t: u32, _head: u32, x: Eight) {
    values[2u * i] = bitcast<vec4u>(x.low);
    values[2u * i + 1u] = bitcast<vec4u>(x.high);
}
