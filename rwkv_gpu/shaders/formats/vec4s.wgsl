// Word n of a plane, out of the vec4 that it lies in.
fn word_at(start: u32, n: u32) -> u32 { return w[start + n / 4u][n % 4u]; }
