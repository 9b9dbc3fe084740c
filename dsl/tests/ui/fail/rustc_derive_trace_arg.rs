use tracewright_dsl::TraceArg;

#[derive(Clone, TraceArg)]
struct Outer {
    count: usize,
    rope: std::rc::Rc<u32>,
    //    ^^^^^^^^^^^^^^^^ the trait bound `Rc<u32>: TraceArg` is not satisfied
}

fn main() {}
