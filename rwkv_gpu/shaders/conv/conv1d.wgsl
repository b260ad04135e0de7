// y[t, c] = then(sum over i of w[c, i] · x[t - TAPS + 1 + i, c] + bias[c])      one lane for each row and channel
//
// The first rows of a segment also read its state. One lane computes all of these rows and then replaces the state, so
// that no other lane reads values that it replaces.
// needs gates: gated, x_at; lib/activation: activation; lib/step: kept_state; y: write_y
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, STRIDE], channels from column FIRST on
@group(0) @binding(2) var<storage, read> weights: array<f32>;           // w [C, TAPS], then the bias [C]
@group(0) @binding(3) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(4) var<storage, read> row_segment: array<u32>;       // [T]
@group(0) @binding(5) var<storage, read_write> state: array<f32>;       // [states, PAST, C], the oldest first
@group(0) @binding(6) var<storage, read_write> y: array<f32>;           // [T, C]

const_assert TAPS >= 2u;
const PAST = TAPS - 1u;             // previous rows that a row reads

fn run(group: u32, lane: u32) {
    let t = group / ACROSS;
    let c = group % ACROSS * WG + lane;
    if t >= step.rows || c >= C {
        return;
    }
    var owner = t;                  // with one row per sequence, row t belongs to segment t
    if step.segments != step.rows {
        owner = row_segment[t];
    }
    let segment = segments[owner];
    if t == segment.first {
        first_rows(segment, c);
    } else if t - segment.first >= PAST {
        var past: array<f32, PAST>;
        for (var i = 0u; i < PAST; i++) {
            past[i] = x_at(t - PAST + i, c);
        }
        let here = x_at(t, c);
        put(t, c, past, here);
        let row = t - segment.first;
        if row < segment.kept {
            for (var i = 1u; i < PAST; i++) {
                past[i - 1u] = past[i];
            }
            past[PAST - 1u] = here;
            save(kept_state(segment, row), c, past);
        }
    }
}

// Computes the rows that read the state, and the new state.
fn first_rows(segment: Segment, c: u32) {
    var past: array<f32, PAST>;
    for (var i = 0u; i < PAST; i++) {
        past[i] = 0.0;
        if segment.start > 0u {
            past[i] = state[(segment.source * PAST + i) * C + c];
        }
    }
    for (var n = 0u; n < min(segment.count, PAST); n++) {
        let here = x_at(segment.first + n, c);
        put(segment.first + n, c, past, here);
        for (var i = 1u; i < PAST; i++) {
            past[i - 1u] = past[i];
        }
        past[PAST - 1u] = here;
        if n < segment.kept {
            save(kept_state(segment, n), c, past);
        }
    }
    for (var i = 0u; i < PAST; i++) {
        if segment.count > PAST {
            past[i] = x_at(segment.first + segment.count - PAST + i, c);
        }
    }
    save(segment.written, c, past);
}

fn save(page: u32, c: u32, past: array<f32, PAST>) {
    var rows = past;
    for (var i = 0u; i < PAST; i++) {
        state[(page * PAST + i) * C + c] = rows[i];
    }
}

fn put(t: u32, c: u32, past: array<f32, PAST>, here: f32) {
    var before = past;
    var sum = weights[c * TAPS + PAST] * here + weights[C * TAPS + c];
    for (var i = 0u; i < PAST; i++) {
        sum += weights[c * TAPS + i] * before[i];
    }
    write_y(t, c, gated(t, c, activation(THEN, sum)));
}
