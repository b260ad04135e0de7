// Logits as they came, as no row of a step has penalties, a mask or a bound.
// needs lanes: reduce_add, reduce_max
const CHANGES = false;

fn adjusted(_row: u32, _draw: Draw, _token: u32, raw: f32) -> f32 { return max(raw, LEAST); }

fn truncates(_draw: Draw) -> bool { return false; }

fn reduce_most(v: vec2f, lane: u32) -> vec2f { return vec2f(reduce_max(v.x, lane)); }
fn reduce_sums(v: vec2f, lane: u32) -> vec2f { return vec2f(reduce_add(v.x, lane)); }

fn remember(_draw: Draw, _token: u32) {}
