// Blocks of 32 dims are rotated before they are stored, by a Hadamard matrix: a large dim is spread over all 32, so that the
// others keep their precision. The matrix is its own inverse. Scores do not change if queries are rotated, too.
const ROTATED = true;

fn rotated(x: array<vec4f, 8>) -> array<vec4f, 8> {
    let a0 = x[0] + x[1];
    let a1 = x[0] - x[1];
    let a2 = x[2] + x[3];
    let a3 = x[2] - x[3];
    let a4 = x[4] + x[5];
    let a5 = x[4] - x[5];
    let a6 = x[6] + x[7];
    let a7 = x[6] - x[7];
    let b0 = a0 + a2;
    let b2 = a0 - a2;
    let b1 = a1 + a3;
    let b3 = a1 - a3;
    let b4 = a4 + a6;
    let b6 = a4 - a6;
    let b5 = a5 + a7;
    let b7 = a5 - a7;
    return array(
        within_four(b0 + b4),
        within_four(b1 + b5),
        within_four(b2 + b6),
        within_four(b3 + b7),
        within_four(b0 - b4),
        within_four(b1 - b5),
        within_four(b2 - b6),
        within_four(b3 - b7),
    );
}

fn within_four(x: vec4f) -> vec4f {
    let two = vec4f(x.x + x.y, x.x - x.y, x.z + x.w, x.z - x.w);
    return 0.17677669529663687 * vec4f(two.xy + two.zw, two.xy - two.zw);     // 32 ** -0.5
}
