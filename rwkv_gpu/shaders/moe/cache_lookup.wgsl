// slots = the cache slots of the chosen experts; fetch = experts that must be copied there first       one workgroup
//
// Experts without a copy get the slots that were used least recently. There are at least as many slots as choices.
@group(0) @binding(1) var<storage, read> experts: array<u32>;           // [T * USED]
@group(0) @binding(2) var<storage, read_write> book: array<u32>;
@group(0) @binding(3) var<storage, read_write> slots: array<u32>;       // [T * USED]
@group(0) @binding(4) var<storage, read_write> fetch: array<u32>;       // [T * USED] 1 + expert * SLOTS + slot; 0 is none

// The book: the number of the step, choices, choices without a copy, and, for each expert and slot:
const SLOT_OF = 4u;                 // 1 + the slot of an expert, or 0
const EXPERT_IN = SLOT_OF + E;      // 1 + the expert in a slot, or 0
const USED_AT = EXPERT_IN + SLOTS;  // the step that used it last

const_assert SLOTS >= CHOICES;

var<workgroup> chosen: array<u32, CHOICES>;
var<workgroup> missing: array<u32, CHOICES>;    // 1 if the expert of a choice has no copy, and no earlier choice has the same expert
var<workgroup> used_at: array<u32, SLOTS>;
var<workgroup> oldest: array<u32, CHOICES>;     // slots, least recently used first

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    let choices = step.rows * USED;
    let now = book[0] + 1u;
    for (var n = lane; n < choices; n += WG) {
        chosen[n] = min(experts[n], E - 1u);
        let slot = book[SLOT_OF + chosen[n]];
        if slot > 0u {
            book[USED_AT + slot - 1u] = now;
        }
    }
    storageBarrier();
    workgroupBarrier();
    for (var s = lane; s < SLOTS; s += WG) {
        used_at[s] = book[USED_AT + s];
    }
    for (var n = lane; n < choices; n += WG) {
        var first = book[SLOT_OF + chosen[n]] == 0u;
        for (var before = 0u; before < n; before++) {
            first = first && chosen[before] != chosen[n];
        }
        missing[n] = u32(first);
    }
    storageBarrier();       // all lanes have read the book before any lane writes it
    workgroupBarrier();
    for (var s = lane; s < SLOTS; s += WG) {
        var rank = 0u;
        for (var other = 0u; other < SLOTS; other++) {
            rank += u32(used_at[other] < used_at[s] || (used_at[other] == used_at[s] && other < s));
        }
        if rank < CHOICES {
            oldest[rank] = s;
        }
    }
    workgroupBarrier();
    for (var n = lane; n < choices; n += WG) {
        var before = 0u;
        for (var other = 0u; other < n; other++) {
            before += missing[other];
        }
        fetch[n] = 0u;
        if missing[n] == 1u {
            let slot = oldest[before];
            let leaves = book[EXPERT_IN + slot];
            if leaves > 0u {
                book[SLOT_OF + leaves - 1u] = 0u;
            }
            book[EXPERT_IN + slot] = chosen[n] + 1u;
            book[SLOT_OF + chosen[n]] = slot + 1u;
            book[USED_AT + slot] = now;
            fetch[n] = 1u + chosen[n] * SLOTS + slot;
        }
        if n == choices - 1u {
            book[0] = now;
            book[1] += choices;
            book[2] += before + missing[n];
        }
    }
    storageBarrier();
    workgroupBarrier();
    for (var n = lane; n < choices; n += WG) {
        slots[n] = book[SLOT_OF + chosen[n]] - 1u;
    }
}
