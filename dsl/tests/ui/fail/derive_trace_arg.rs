use tracewright_dsl::TraceArg;

#[derive(Clone, TraceArg)]
struct Borrowed<'a>(&'a str);
//              ^^ an argument outlives the body; it can borrow nothing

#[derive(Clone, TraceArg)]
enum Never {}
//   ^^^^^ an enum without variants has no values to pass

#[derive(Clone, Copy, TraceArg)]
pub union Either {
//  ^^^^^ a union cannot be an argument
    a: u32,
    b: i32,
}

fn main() {}
