//! Fuses products and sums in the text of a kernel. IREE lets LLVM round a product and a sum once (`contract`), and
//! LLVM decides so by the processor: for a · b + c · d, x86-64 and AArch64 round another product. A kernel that has
//! fused them leaves LLVM no choice.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The factors of a product, by its name.
type Products<'a> = BTreeMap<&'a str, [&'a str; 2]>;

/// The kernel's text with `math.fma` for each sum or difference that has a product. If both operands are
/// products, the first is fused, as on x86-64.
pub(crate) fn fused(body: &str) -> String {
    let (mut products, mut text) = (Products::new(), String::with_capacity(body.len()));
    for (number, line) in body.lines().enumerate() {
        let statement = Statement::of(line);
        match statement.as_ref().and_then(|statement| statement.fused(&products, number)) {
            Some(fused) => text.push_str(&fused),
            None => text.push_str(line),
        }
        text.push('\n');
        if let Some(Statement { name, op: "arith.mulf", operands, .. }) = statement {
            products.insert(name, operands);
        }
    }
    text
}

/// An operation of two operands, as `%name = op %a, %b : type`.
struct Statement<'a> {
    name: &'a str,
    op: &'a str,
    operands: [&'a str; 2],
    ty: &'a str,
}

impl<'a> Statement<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (name, rest) = line.trim_start().split_once(" = ")?;
        let (op, rest) = rest.split_once(' ')?;
        let (operands, ty) = rest.rsplit_once(" : ")?;
        let (a, b) = operands.split_once(", ")?;
        matches!(op, "arith.mulf" | "arith.addf" | "arith.subf").then_some(Self {
            name,
            op,
            operands: [a, b],
            ty,
        })
    }

    /// `None` if no operand is a product. `number` makes the name of a negated operand unique.
    fn fused(&self, products: &Products<'_>, number: usize) -> Option<String> {
        let &Self { name, op, operands: [a, b], ty } = self;
        let (product, other) = match (products.get(a), products.get(b)) {
            (Some(&product), _) => (product, b),
            (None, Some(&product)) => (product, a),
            (None, None) => return None,
        };
        let ([x, y], mut text) = (product, String::new());
        let negated = format!("%negated{number}");
        let [x, y, z] = match op {
            "arith.addf" => [x, y, other],
            "arith.subf" if other == b => [x, y, &negated],
            "arith.subf" => [&negated, y, other],
            _ => return None,
        };
        if op == "arith.subf" {
            let operand = if other == b { b } else { product[0] };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{negated} = arith.negf {operand} : {ty}");
        }
        let _ = write!(text, "{name} = math.fma {x}, {y}, {z} : {ty}");
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::fused;

    #[test]
    fn sums_of_products_are_fused_once() {
        let body = "%p = arith.mulf %a, %b : f32\n%q = arith.mulf %c, %d : f32\n%s = arith.addf %p, %q : f32\n\
                    %t = arith.subf %q, %a : f32\n%u = arith.subf %a, %p : f32\n%v = arith.addf %a, %b : f32\n";
        let expected = "%p = arith.mulf %a, %b : f32\n%q = arith.mulf %c, %d : f32\n%s = math.fma %a, %b, %q : f32\n\
                        %negated3 = arith.negf %a : f32\n%t = math.fma %c, %d, %negated3 : f32\n\
                        %negated4 = arith.negf %a : f32\n%u = math.fma %negated4, %b, %a : f32\n\
                        %v = arith.addf %a, %b : f32\n";
        assert_eq!(fused(body), expected);
    }
}
