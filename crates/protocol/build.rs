//! Compiles the .proto files without protoc.

use std::error::Error;

use prost_types::field_descriptor_proto::Type;

/// Record fields that the .proto declares as `string` and the code holds as bytes. The wire form is the
/// same; the records then stay where they were received, and UTF-8 is checked once, by the server, with an
/// answer of its own instead of a decode error that ends the call without a reason.
const TEXT_AS_BYTES: [(&str, &str); 2] = [("IngestRecordRequest", "json_record"), ("JsonRecordBatch", "records")];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut files = protox::compile(["proto/zerobus.proto", "proto/status.proto"], ["proto"])?;
    for message in files.file.iter_mut().flat_map(|file| &mut file.message_type) {
        let name = message.name().to_owned();
        for field in &mut message.field {
            if TEXT_AS_BYTES.contains(&(name.as_str(), field.name())) {
                field.set_type(Type::Bytes);
            }
        }
    }
    tonic_prost_build::configure().bytes(".").btree_map(".google.rpc.ErrorInfo.metadata").compile_fds(files)?;
    Ok(())
}
