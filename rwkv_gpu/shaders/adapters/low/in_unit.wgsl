// low in units of x, which is not normed here: products on matrix units, which want it so, norm their sums.
const FINDS_COLUMNS = 0u;
const ROOTED = false;

fn low_scale(_squares: f32) -> f32 { return 1.0 / LOW_UNIT; }

fn put_columns(_t: u32, _first: f32, _end: f32) {}
