// S = S e^(dt A) + dt x Bᵀ, y = (S C + D x) silu(z)      one workgroup per segment and head, LANES_PER_ROW lanes per ROWS rows of S
//
// S stays in registers. All lanes together load BLOCK tokens into workgroup memory, then each goes through them without a
// barrier. Software Vulkan stops an invocation after 65,535 turns of all its loops, so columns are unrolled by UNROLL.
// needs sum: group_sum
@group(0) @binding(1) var<storage, read> xbc: array<vec4f>;             // x [T, H, P], B and C [T, G, N] in one row
@group(0) @binding(2) var<storage, read> projected: array<f32>;         // [T, STRIDE], z [H, P] first and dt [H] last
@group(0) @binding(3) var<storage, read> parameters: array<f32>;        // the bias of dt, A and D, [H] each
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(5) var<storage, read_write> state: array<vec4f>;     // [states, H, P, N / 4]
@group(0) @binding(6) var<storage, read_write> y: array<f32>;           // [T, H, P]

const_assert WG * ROWS == P * LANES_PER_ROW;
const_assert N % (4u * LANES_PER_ROW * UNROLL) == 0u;
const_assert P % 4u == 0u;
const_assert BLOCK <= WG;
const N4 = N / 4u;
const P4 = P / 4u;
const ROW4 = H * P4 + 2u * G * N4;      // vec4s of a row of x, B and C
const COLUMNS = N4 / LANES_PER_ROW;     // vec4s of a lane: every LANES_PER_ROW-th, so that lanes read side by side

var<workgroup> block_b: array<vec4f, BLOCK * N4>;
var<workgroup> block_c: array<vec4f, BLOCK * N4>;
var<workgroup> block_x: array<vec4f, BLOCK * P4>;
var<workgroup> block_gate: array<f32, BLOCK * P>;       // silu(z)
var<workgroup> block_steps: array<vec2f, BLOCK>;        // dt and e^(dt A)

fn run(group: u32, lane: u32) {
    if group / H >= step.segments {
        return;
    }
    let segment = segments[group / H];
    let head = group % H;
    let row = lane / LANES_PER_ROW * ROWS;
    let part = lane % LANES_PER_ROW;
    let source = ((segment.source * H + head) * P + row) * N4 + part;
    let written = ((segment.written * H + head) * P + row) * N4 + part;
    let skip = parameters[2u * H + head];
    var s: array<vec4f, ROWS * COLUMNS>;
    for (var i = 0u; i < ROWS * COLUMNS; i++) {
        s[i] = vec4f();
        if segment.start > 0u {
            s[i] = state[source + i / COLUMNS * N4 + i % COLUMNS * LANES_PER_ROW];
        }
    }
    for (var done = 0u; done < segment.count; done += BLOCK) {
        let tokens = min(BLOCK, segment.count - done);
        prepare(segment.first + done, tokens, head, lane);
        for (var token = 0u; token < tokens; token++) {
            let steps = block_steps[token];
            let base = token * N4 + part;
            for (var j = 0u; j < ROWS; j++) {
                let at = token * P + row + j;
                let x = block_x[at / 4u][at % 4u];
                var sums = vec4f();
                for (var c = 0u; c < COLUMNS; c += UNROLL) {
                    let i = j * COLUMNS + c;
                    sums += advance(&s, i, base + c * LANES_PER_ROW, steps, x);
                    if UNROLL > 1u {
                        sums += advance(&s, i + UNROLL / 2u, base + (c + UNROLL / 2u) * LANES_PER_ROW, steps, x);
                    }
                    if UNROLL > 2u {
                        sums += advance(&s, i + 1u, base + (c + 1u) * LANES_PER_ROW, steps, x);
                        sums += advance(&s, i + 3u, base + (c + 3u) * LANES_PER_ROW, steps, x);
                    }
                }
                let out = group_sum(dot(sums, vec4f(1.0)), LANES_PER_ROW);
                if part == 0u {
                    y[((segment.first + done + token) * H + head) * P + row + j] = fma(skip, x, out) * block_gate[at];
                }
            }
        }
    }
    for (var i = 0u; i < ROWS * COLUMNS; i++) {
        state[written + i / COLUMNS * N4 + i % COLUMNS * LANES_PER_ROW] = s[i];
    }
}

// Four numbers of S, a token on; gives their part of S C.
fn advance(s: ptr<function, array<vec4f, ROWS * COLUMNS>>, i: u32, at: u32, steps: vec2f, x: f32) -> vec4f {
    let now = fma((*s)[i], vec4f(steps.y), steps.x * x * block_b[at]);
    (*s)[i] = now;
    return now * block_c[at];
}

// Loads a block of tokens: all that does not depend on S.
fn prepare(first: u32, tokens: u32, head: u32, lane: u32) {
    workgroupBarrier();                 // the block before has been read by all
    let b = H * P4 + head / (H / G) * N4;
    for (var i = lane; i < tokens * N4; i += WG) {
        let at = (first + i / N4) * ROW4 + b + i % N4;
        block_b[i] = xbc[at];
        block_c[i] = xbc[at + G * N4];
    }
    for (var i = lane; i < tokens * P4; i += WG) {
        block_x[i] = xbc[(first + i / P4) * ROW4 + head * P4 + i % P4];
    }
    for (var i = lane; i < tokens * P; i += WG) {
        let z = projected[(first + i / P) * STRIDE + head * P + i % P];
        block_gate[i] = z / (1.0 + exp(-z));
    }
    if lane < tokens {
        let dt = softplus(projected[(first + lane) * STRIDE + STRIDE - H + head] + parameters[head]);
        block_steps[lane] = vec2f(dt, exp(dt * parameters[H + head]));
    }
    workgroupBarrier();
}

fn softplus(x: f32) -> f32 { return select(log(1.0 + exp(x)), x, x > 20.0); }
