//! Emulates tiles on processors without them. Plain code replaces a module's tile instructions, and the system's
//! consent is assumed. Intel's manual defines each instruction ("64 and IA-32 Architectures Software Developer's
//! Manual", volume 2: `LDTILECFG`, `TILELOADD`, `TILESTORED`, `TILEZERO`, `TILERELEASE`, `TDPBF16PS`, `TDPBSSD`).

use std::fmt::Write as _;

/// A module's text for a system that grants no tiles.
pub fn refused(text: &str) -> String {
    let line = |line: &str| match line.split_once("llvm.inline_asm ") {
        Some((before, assembly)) if assembly.contains("\"syscall\"") => {
            format!("{before}arith.constant 1 : i64\n")
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// A module's text without tile instructions.
pub fn emulated(text: &str) -> String {
    let mut emulated = String::new();
    for (number, line) in text.lines().enumerate() {
        match line.split_once("llvm.inline_asm ") {
            Some((before, assembly)) => emulated += &instruction(before, assembly, number),
            None => emulated += line,
        }
        emulated.push('\n');
        if line.trim_start().starts_with("func.func @") && line.contains("!stream.binding") {
            emulated += "%tiles = memref.alloca() : memref<8x16x16xi32>\n\
                         %tilecfg = memref.alloca() : memref<64xi8>\n";
        }
    }
    emulated
}

/// The code for one instruction. Names of values end with its number.
fn instruction(before: &str, assembly: &str, n: usize) -> String {
    let mut quoted = assembly.split('"');
    let (Some(instruction), Some(operands)) = (quoted.nth(1), quoted.nth(2)) else {
        unreachable!("assembly has a text and constraints: {assembly}")
    };
    let operands: Vec<&str> =
        operands.split(':').next().unwrap_or_default().split(',').map(str::trim).collect();
    let tiles: Vec<usize> = instruction
        .split("tmm")
        .skip(1)
        .filter_map(|rest| rest.chars().next()?.to_digit(10).map(|digit| digit as usize))
        .collect();
    let name = instruction.split(' ').next().unwrap_or_default();
    let body = match name {
        // What stays in order stays so.
        "" => return format!("{before}llvm.inline_asm {assembly}"),
        "syscall" => return format!("{before}arith.constant 0 : i64"),
        "ldtilecfg" => format!("{}{}", configured(operands[0]), zero(0..8)),
        "tilerelease" => zero(0..8),
        "tilezero" => zero(tiles[0]..tiles[0] + 1),
        "tileloadd" => format!("{}{}", zero(tiles[0]..tiles[0] + 1), moved(tiles[0], &operands, true)),
        "tilestored" => moved(tiles[0], &operands, false),
        "tdpbf16ps" => product(&tiles, PAIRS),
        "tdpbssd" => product(&tiles, &bytes()),
        _ => unreachable!("an instruction without emulation: {instruction}"),
    };
    body.replace('#', &format!("_{n}"))
}

/// Begins a loop from 0 to a number.
fn each(variable: &str, end: &str) -> String {
    format!(
        "%zero_{variable}# = arith.constant 0 : index\n%one_{variable}# = arith.constant 1 : index\nscf.for %{variable}# = %zero_{variable}# to {end} step %one_{variable}# {{\n"
    )
}

fn place(name: &str, number: usize) -> String {
    format!("%{name}# = arith.constant {number} : index\n")
}

fn zero(tiles: std::ops::Range<usize>) -> String {
    let mut text = format!("{}%nothing# = arith.constant 0 : i32\n", place("side", 16));
    for tile in tiles {
        let _ = write!(
            text,
            "{}{}{}memref.store %nothing#, %tiles[%z_{tile}#, %zr_{tile}#, %zc_{tile}#] : memref<8x16x16xi32>\n}}\n}}\n",
            place(&format!("z_{tile}"), tile),
            each(&format!("zr_{tile}"), "%side#"),
            each(&format!("zc_{tile}"), "%side#"),
        );
    }
    text
}

fn configured(address: &str) -> String {
    format!(
        "{}{}%ci# = arith.index_cast %c# : index to i64\n%ca# = arith.addi {address}, %ci# : i64\n\
         %cp# = llvm.inttoptr %ca# : i64 to !llvm.ptr\n%cv# = llvm.load %cp# : !llvm.ptr -> i8\n\
         memref.store %cv#, %tilecfg[%c#] : memref<64xi8>\n}}\n",
        place("all", 64),
        each("c", "%all#")
    )
}

/// The rows of a tile, and the numbers of four bytes in a row.
fn extents(name: &str, tile: usize) -> String {
    let byte = |what: &str, at: usize| {
        format!(
            "{}%{name}_{what}_byte# = memref.load %tilecfg[%{name}_{what}_at#] : memref<64xi8>\n\
             %{name}_{what}# = arith.index_castui %{name}_{what}_byte# : i8 to index\n",
            place(&format!("{name}_{what}_at"), at)
        )
    };
    format!(
        "{}{}{}%{name}_words# = arith.divui %{name}_line#, %{name}_four# : index\n",
        byte("rows", 48 + tile),
        byte("line", 16 + 2 * tile),
        place(&format!("{name}_four"), 4),
    )
}

fn moved(tile: usize, operands: &[&str], load: bool) -> String {
    let (address, stride) = (operands[0], operands[1]);
    let word = if load {
        "%v# = llvm.load %p# : !llvm.ptr -> i32\nmemref.store %v#, %tiles[%t#, %r#, %w#] : memref<8x16x16xi32>\n"
    } else {
        "%v# = memref.load %tiles[%t#, %r#, %w#] : memref<8x16x16xi32>\nllvm.store %v#, %p# : i32, !llvm.ptr\n"
    };
    format!(
        "{}{}{}{}%ri# = arith.index_cast %r# : index to i64\n%rs# = arith.muli %ri#, {stride} : i64\n\
         %wi# = arith.index_cast %w# : index to i64\n%four# = arith.constant 4 : i64\n\
         %ws# = arith.muli %wi#, %four# : i64\n%o# = arith.addi %rs#, %ws# : i64\n\
         %a# = arith.addi {address}, %o# : i64\n%p# = llvm.inttoptr %a# : i64 to !llvm.ptr\n{word}}}\n}}\n",
        place("t", tile),
        extents("e", tile),
        each("r", "%e_rows#"),
        each("w", "%e_words#"),
    )
}

/// Two products of bf16, which are the upper halves of f32.
const PAIRS: &str = "%sixteen# = arith.constant 16 : i32\n%upper# = arith.constant -65536 : i32\n\
    %x0i# = arith.shli %x#, %sixteen# : i32\n%y0i# = arith.shli %y#, %sixteen# : i32\n\
    %x1i# = arith.andi %x#, %upper# : i32\n%y1i# = arith.andi %y#, %upper# : i32\n\
    %x0# = arith.bitcast %x0i# : i32 to f32\n%y0# = arith.bitcast %y0i# : i32 to f32\n\
    %x1# = arith.bitcast %x1i# : i32 to f32\n%y1# = arith.bitcast %y1i# : i32 to f32\n\
    %s0# = arith.bitcast %s# : i32 to f32\n%s1# = math.fma %x0#, %y0#, %s0# : f32\n\
    %s2# = math.fma %x1#, %y1#, %s1# : f32\n%sum# = arith.bitcast %s2# : f32 to i32\n";

/// Four products of bytes with a sign. By shifts: behind `vector.bitcast`, iree-compile 3.13 widens
/// bytes without their sign (`docs/upstream/bitcast_sign.mlir`).
fn bytes() -> String {
    let mut text = "%top# = arith.constant 24 : i32\n".to_owned();
    for byte in 0..4 {
        let _ = write!(
            text,
            "%up{byte}# = arith.constant {} : i32\n\
             %xu{byte}# = arith.shli %x#, %up{byte}# : i32\n%xs{byte}# = arith.shrsi %xu{byte}#, %top# : i32\n\
             %yu{byte}# = arith.shli %y#, %up{byte}# : i32\n%ys{byte}# = arith.shrsi %yu{byte}#, %top# : i32\n\
             %p{byte}# = arith.muli %xs{byte}#, %ys{byte}# : i32\n%{}# = arith.addi %{}#, %p{byte}# : i32\n",
            24 - 8 * byte,
            ["s1", "s2", "s3", "sum"][byte],
            ["s", "s1", "s2", "s3"][byte],
        );
    }
    text
}

fn product(tiles: &[usize], add: &str) -> String {
    let (sums, x, weights) = (tiles[0], tiles[1], tiles[2]);
    format!(
        "{}{}{}{}{}{}{}{}%s# = memref.load %tiles[%st#, %r#, %c#] : memref<8x16x16xi32>\n\
         %x# = memref.load %tiles[%xt#, %r#, %k#] : memref<8x16x16xi32>\n\
         %y# = memref.load %tiles[%yt#, %k#, %c#] : memref<8x16x16xi32>\n\
         {add}memref.store %sum#, %tiles[%st#, %r#, %c#] : memref<8x16x16xi32>\n}}\n}}\n}}\n",
        place("st", sums),
        place("xt", x),
        place("yt", weights),
        extents("se", sums),
        extents("xe", x),
        each("r", "%se_rows#"),
        each("k", "%xe_words#"),
        each("c", "%se_words#"),
    )
}
