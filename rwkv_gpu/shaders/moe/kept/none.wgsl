// What has become of sums is not written otherwise.
fn keep(_n: u32, _m: u32, _value: f32, _there: bool) {}
