// Scores by keys as floats.
// needs raw: eight_of, scale_of
alias Query = array<Pack, 2>;    // the lower 4 of 8 dims and the upper; DirectX's compiler crashes at matrices in a local structure

fn query_of(low: Pack, high: Pack) -> Query { return Query(low, high); }

// The part of 8 dims of a key, which are number c of a head.
fn score_of(raw: Raw, q: Query, c: u32) -> Each {
    let key = eight_of(raw);
    return (key.low * q[0] + key.high * q[1]) * scale_of(raw, c);
}
