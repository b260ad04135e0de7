// x, B and C as they stand
@group(0) @binding(1) var<storage, read> xbc: array<vec4f>;             // x [T, H, P], B and C [T, G, N] in one row

fn xbc_at(_segment: Segment, row: u32, c: u32, _own: bool) -> vec4f { return xbc[row * ROW4 + c]; }
