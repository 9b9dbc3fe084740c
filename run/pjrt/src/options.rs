//! Encodes the options of XLA's compiler in the wire format of Protocol Buffers. The field numbers come from
//! `xla/pjrt/proto/compile_options.proto`, and from `DeviceAssignmentProto` in `xla/xla_data.proto`.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XlaOptions {
    /// Such as `xla_cpu_scheduler_type`. They override the defaults.
    pub settings: Vec<(String, String)>,
}

impl XlaOptions {
    /// A `CompileOptionsProto` for the devices with these ids.
    pub(crate) fn encode(&self, devices: &[i64]) -> Vec<u8> {
        let count = devices.len() as i64;
        // The device assignment lists one replica, with one device for each partition.
        let assignment = devices.iter().fold(Message::default().number(1, 1).number(2, count), |all, &id| {
            all.bytes(3, &Message::default().bytes(1, &varint(id)).0)
        });
        let build = Message::default().number(4, 1).number(5, count);
        // XLA partitions one program over all devices, and reads shardings in the syntax of Shardy.
        let build = build.number(6, 1).bytes(9, &assignment.0).number(19, 1);
        let all = Message::default().bytes(3, &build.0);
        let with = |message: Message, (name, value): &(String, String)| {
            let value = Message::default().bytes(1, value.as_bytes());
            message.bytes(7, &Message::default().bytes(1, name.as_bytes()).bytes(2, &value.0).0)
        };
        self.settings.iter().fold(all, with).0
    }
}

/// Protocol Buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(mut self, field: i64, value: i64) -> Self {
        self.0.extend(varint(field << 3));
        self.0.extend(varint(value));
        self
    }

    /// A text, bytes, packed numbers or another message.
    fn bytes(mut self, field: i64, value: &[u8]) -> Self {
        self.0.extend(varint(field << 3 | 2));
        self.0.extend(varint(value.len() as i64));
        self.0.extend(value);
        self
    }
}

/// Seven bits per byte, lowest first. The top bit is set in all bytes but the last.
fn varint(value: i64) -> Vec<u8> {
    let mut rest = value as u64;
    let mut bytes = Vec::new();
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected bytes in this test are the output of the Python package `protobuf` for the same message.
    #[test]
    fn options_are_a_protocol_buffer() {
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(varint(-1), [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
        let options = XlaOptions { settings: vec![("a".into(), "bc".into())] };
        let assignment = [0x4a, 0x09, 0x08, 0x01, 0x10, 0x01, 0x1a, 0x03, 0x0a, 0x01, 0x07];
        let partitioned = [0x98, 0x01, 0x01];
        let build =
            [&[0x1a, 0x14, 0x20, 0x01, 0x28, 0x01, 0x30, 0x01], &assignment[..], &partitioned].concat();
        let setting = [0x3a, 0x09, 0x0a, 0x01, b'a', 0x12, 0x04, 0x0a, 0x02, b'b', b'c'];
        assert_eq!(options.encode(&[7]), [&build[..], &setting].concat());
        let assignment =
            [0x4a, 0x0e, 0x08, 0x01, 0x10, 0x02, 0x1a, 0x03, 0x0a, 0x01, 0x07, 0x1a, 0x03, 0x0a, 0x01, 0x09];
        let build =
            [&[0x1a, 0x19, 0x20, 0x01, 0x28, 0x02, 0x30, 0x01], &assignment[..], &partitioned].concat();
        assert_eq!(XlaOptions::default().encode(&[7, 9]), build);
    }
}
