// Products of 16 signed bytes of x with as many of W, onto a sum.
fn dot16(sum: i32, x: vec4u, q: vec4u) -> i32 {
    let half = dot4I8Packed(x.y, q.y) + (dot4I8Packed(x.x, q.x) + sum);
    return dot4I8Packed(x.w, q.w) + (dot4I8Packed(x.z, q.z) + half);
}
