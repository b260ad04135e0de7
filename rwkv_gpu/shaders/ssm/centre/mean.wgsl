// The mean of a group.
// needs lanes: reduce_add
fn centre_of(first: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var d = lane; d < OWN; d += WG) {
        sum += x[first + d];
    }
    return reduce_add(sum, lane) / f32(OWN);
}
