// What has become of sums is not written otherwise.
fn keep(_m: u32, _t: u32, _there: bool) {}
