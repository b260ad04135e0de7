// One row of x and one of z behind it: of both x4 gives what lies from column k on.
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [K / 4], of the first matrix
@group(0) @binding(18) var<storage, read> z: array<vec4f>;      // of the second

fn x4(_start: u32, k: u32, _width: u32) -> vec4f {
    if k < 32u * SEAM {
        return x[(table.matrix[0].x + k) / 4u];
    }
    return z[(table.matrix[1].x + k) / 4u - 8u * SEAM];
}
