// Norms of heads, before or after rotation.

//# none: Heads are rotated without a norm.
const NORMED = false;
const WHOLE = false;

// The start of a head's weights; those of keys follow the H heads of queries.
fn norm_start(_head: u32) -> u32 { return 0u; }

fn weight_before(_d: u32) -> f32 { return 1.0; }

fn weight_after(_d: u32) -> f32 { return 1.0; }

fn root_of(_squares: f32, _count: u32) -> f32 { return 1.0; }

//# rms: Heads are normed before they are rotated. `vectors` starts with the weights of q and k [2, N].
const NORMED = true;
const WHOLE = false;

// The start of a head's weights; those of keys follow the H heads of queries.
fn norm_start(head: u32) -> u32 { return select(0u, N, head >= H); }

fn weight_before(d: u32) -> f32 { return vectors[d]; }

fn weight_after(_d: u32) -> f32 { return 1.0; }

fn root_of(squares: f32, count: u32) -> f32 { return inverseSqrt(squares / f32(count) + EPS); }

//# turned
// Heads are normed after the rotation, which does not change their length. `vectors` starts with the weights of q and k [2, N].
const NORMED = true;
const WHOLE = false;

// The start of a head's weights; those of keys follow the H heads of queries.
fn norm_start(head: u32) -> u32 { return select(0u, N, head >= H); }

fn weight_before(_d: u32) -> f32 { return 1.0; }

fn weight_after(d: u32) -> f32 { return vectors[d]; }

fn root_of(squares: f32, count: u32) -> f32 { return inverseSqrt(squares / f32(count) + EPS); }

//# unit: Heads are normed without weights.
const NORMED = true;
const WHOLE = false;

// The start of a head's weights; those of keys follow the H heads of queries.
fn norm_start(_head: u32) -> u32 { return 0u; }

fn weight_before(_d: u32) -> f32 { return 1.0; }

fn weight_after(_d: u32) -> f32 { return 1.0; }

fn root_of(squares: f32, count: u32) -> f32 { return inverseSqrt(squares / f32(count) + EPS); }

//# whole
// q and k are normed before the rotation, each over all its heads. `vectors` starts with their weights [H, N] and [KV, N].
const NORMED = false;
const WHOLE = true;

// The start of a head's weights; those of keys follow the H heads of queries.
fn norm_start(head: u32) -> u32 { return head * N; }

fn weight_before(d: u32) -> f32 { return vectors[d]; }

fn weight_after(_d: u32) -> f32 { return 1.0; }

fn root_of(squares: f32, count: u32) -> f32 { return inverseSqrt(squares / f32(count) + EPS); }
