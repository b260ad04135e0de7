// The experts that row t has chosen, and their shares, for all lanes of a workgroup.
// needs bias: bias_of; shares: share_at
@group(0) @binding(4) var<storage, read> experts: array<u32>;           // [T, USED]

var<workgroup> chosen: array<u32, USED>;
var<workgroup> weights: array<f32, USED>;

const_assert USED <= WG;

struct Choice {
    expert: u32,
    share: f32,
}

fn choose(t: u32, lane: u32) {
    keep_choice(choice_of(t, lane), lane);
    workgroupBarrier();
}

// The choice of a lane. It is not used yet.
fn choice_of(t: u32, lane: u32) -> Choice {
    var choice = Choice();
    if lane < USED {
        choice = Choice(experts[t * USED + lane], share_at(t * USED + lane));
    }
    return choice;
}

// All lanes can read it after the next barrier.
fn keep_choice(choice: Choice, lane: u32) {
    if lane < USED {
        chosen[lane] = min(choice.expert, shard.experts - 1u);
        weights[lane] = choice.share;
    }
}

// The sum of the chosen experts' biases of row m, times their shares.
fn biases_of(m: u32) -> f32 { return sum_of_biases(early_biases(m, true)); }

// They are not used yet, because a use would wait for the load.
fn early_biases(m: u32, wanted: bool) -> array<f32, USED> {
    var biases: array<f32, USED>;
    if BIASED && wanted {
        for (var j = 0u; j < USED; j++) {
            biases[j] = bias_of(0u, chosen[j] * M + m);
        }
    }
    return biases;
}

fn sum_of_biases(biases: array<f32, USED>) -> f32 {
    var each = biases;
    var sum = 0.0;
    if BIASED {
        for (var j = 0u; j < USED; j++) {
            sum = fma(weights[j], each[j], sum);
        }
    }
    return sum;
}
