// y = x + sums      one lane per vec4
@group(0) @binding(11) var<uniform> segment: Segment;

var<private> leads: bool;

const_assert D % 4u == 0u;

fn run(group: u32, lane: u32) {
    let d = group * WG + lane;
    leads = d < D / 4u;
    pass_on(d, row_at(min(d, D / 4u - 1u)));
}
