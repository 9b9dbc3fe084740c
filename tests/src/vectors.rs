//! Emulates the instructions of AVX-512 in a module's text, so that a processor with AVX2 runs the kernels for AVX-512.
//! Only lookups and dot products of bytes are instructions; the rest of a kernel is vectors of any length.

use std::fmt::Write as _;

const LOOK_UP: &str = "\"llvm.x86.avx512.pshuf.b.512\"(";
const DOT: &str = "\"llvm.x86.avx512.vpdpbusd.512\"(";

/// A module's text without instructions of AVX-512.
pub fn emulated(text: &str) -> String {
    let mut emulated = String::new();
    for line in text.lines() {
        let call = line.trim_start().split_once(" = llvm.call_intrinsic ");
        match call.and_then(|(name, call)| {
            let (operands, is_dot) = match (call.strip_prefix(LOOK_UP), call.strip_prefix(DOT)) {
                (Some(rest), _) => (rest, false),
                (_, Some(rest)) => (rest, true),
                _ => return None,
            };
            let operands: Vec<&str> = operands.split(')').next()?.split(", ").collect();
            Some(if is_dot { dot(name, &operands) } else { looked_up(name, &operands) })
        }) {
            Some(code) => emulated += &code,
            None => emulated += line,
        }
        emulated.push('\n');
    }
    emulated
}

fn lanes(lanes: impl Iterator<Item = usize>) -> String {
    lanes.map(|lane| lane.to_string()).collect::<Vec<_>>().join(", ")
}

/// The beginning of other names: a letter, because numbers have no suffix.
fn named(result: &str) -> String {
    format!("%of_{}", result.trim_start_matches('%'))
}

/// A lookup for each half.
fn looked_up(result: &str, operands: &[&str]) -> String {
    let (name, mut code) = (named(result), String::new());
    for half in 0..2 {
        for (which, operand) in operands.iter().enumerate() {
            let _ = writeln!(
                code,
                "{name}_{which}_{half} = vector.shuffle {operand}, {operand} [{}] : vector<64xi8>, vector<64xi8>",
                lanes(32 * half..32 * half + 32)
            );
        }
        let _ = writeln!(
            code,
            "{name}_{half} = llvm.call_intrinsic \"llvm.x86.avx2.pshuf.b\"({name}_0_{half}, {name}_1_{half}) : \
             (vector<32xi8>, vector<32xi8>) -> vector<32xi8>"
        );
    }
    let all = lanes(0..64);
    code + &format!("{result} = vector.shuffle {name}_0, {name}_1 [{all}] : vector<32xi8>, vector<32xi8>")
}

/// sums + Σⱼ unsigned[4 i + j] · signed[4 i + j]: products of 16 bits in neighbouring pairs, then pairs of pairs.
fn dot(result: &str, operands: &[&str]) -> String {
    let [sums, unsigned, signed] = operands else { unreachable!("a dot product has three operands") };
    let (name, mut code) = (named(result), String::new());
    for part in 0..4 {
        let of_part = lanes(16 * part..16 * part + 16);
        for (kind, operand) in [("u", unsigned), ("s", signed)] {
            let extend = if kind == "u" { "arith.extui" } else { "arith.extsi" };
            let _ = writeln!(
                code,
                "{name}_b{kind}{part} = vector.shuffle {operand}, {operand} [{of_part}] : vector<64xi8>, vector<64xi8>\n\
                 {name}_{kind}{part} = {extend} {name}_b{kind}{part} : vector<16xi8> to vector<16xi16>"
            );
        }
        let _ = writeln!(
            code,
            "{name}_p{part} = llvm.call_intrinsic \"llvm.x86.avx2.pmadd.wd\"({name}_u{part}, {name}_s{part}) : \
             (vector<16xi16>, vector<16xi16>) -> vector<8xi32>"
        );
    }
    for half in 0..2 {
        let (first, second) = (2 * half, 2 * half + 1);
        for parity in 0..2 {
            let _ = writeln!(
                code,
                "{name}_{parity}_{half} = vector.shuffle {name}_p{first}, {name}_p{second} [{}] : vector<8xi32>, \
                 vector<8xi32>",
                lanes((0..8).map(|i| 2 * i + parity))
            );
        }
        let _ =
            writeln!(code, "{name}_t{half} = arith.addi {name}_0_{half}, {name}_1_{half} : vector<8xi32>");
    }
    code + &format!(
        "{name}_t = vector.shuffle {name}_t0, {name}_t1 [{}] : vector<8xi32>, vector<8xi32>\n\
         {result} = arith.addi {sums}, {name}_t : vector<16xi32>",
        lanes(0..16)
    )
}
