#include "parquet_plugin/row_reader.h"

#include <arrow/io/file.h>
#include <arrow/type.h>
#include <arrow/util/utf8.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace zeroshard {
namespace {

using parquet::arrow::SchemaField;

// The number of rows in a batch is kBatchBytes divided by the mean number of bytes of a row in the row group, but at
// least 1 and at most kBatchRows.
constexpr int64_t kBatchBytes = 8 << 20;
constexpr int64_t kBatchRows = 4096;

template <typename Value>
Value take(arrow::Result<Value> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).ValueUnsafe();
}

void check(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

[[noreturn]] void throw_wrong_type(const std::string& column, const arrow::DataType& type, const std::string& wanted) {
  throw std::runtime_error("column '" + column + "' must hold " + wanted + ", it is of type " + type.ToString());
}

// Returns the field with this name, or null if there is none.
const SchemaField* find(const std::vector<SchemaField>& fields, const std::string& name) {
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const SchemaField& field) { return field.field->name() == name; });
  return found == fields.end() ? nullptr : &*found;
}

}  // namespace

RowReader::RowReader(int fd) {
  arrow::util::InitializeUTF8();
  auto file = take(arrow::io::ReadableFile::Open(fd));
  parquet::ReaderProperties properties;
  properties.enable_buffered_stream();  // otherwise memory would hold a whole column of a row group
  properties.set_buffer_size(1 << 18);
  properties.set_page_checksum_verification(true);
  auto parquet = parquet::ParquetFileReader::Open(std::move(file), properties);
  metadata_ = parquet->metadata();
  parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
  arrow_properties.set_pre_buffer(false);  // pre-buffering would hold whole columns in memory, too
  reader_ = take(parquet::arrow::FileReader::Make(arrow::default_memory_pool(), std::move(parquet), arrow_properties));
  int64_t rows = 0;
  for (int i = 0; i < metadata_->num_row_groups(); ++i) {
    const int64_t of_group = metadata_->RowGroup(i)->num_rows();
    if (of_group < 0 || of_group > std::numeric_limits<int64_t>::max() - rows)
      throw std::runtime_error("a row group has an impossible number of rows");
    rows += of_group;
  }
  if (rows != metadata_->num_rows())
    throw std::runtime_error("the row groups have " + std::to_string(rows) + " rows, and the file " +
                             std::to_string(metadata_->num_rows()));
  for (const SchemaField& field : reader_->manifest().schema_fields) columns_.push_back(field.field->name());
}

void RowReader::select(const ParquetColumn* columns, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const ParquetColumn& column = columns[i];
    Wanted& wanted = wanted_.emplace_back();
    wanted.name = column.name;
    wanted.fields.assign(column.fields, column.fields + column.field_count);
    const SchemaField* const found = find(reader_->manifest().schema_fields, wanted.name);
    if (found == nullptr) throw std::runtime_error("there is no column '" + wanted.name + "'");
    select_leaves(*found, wanted);
  }
}

void RowReader::select_leaves(const SchemaField& column, const Wanted& wanted) {
  const arrow::DataType& type = *column.field->type();
  if (wanted.fields.empty() && !holds_strings(type)) throw_wrong_type(wanted.name, type, "strings");
  if (!wanted.fields.empty() && !holds_lists(type)) throw_wrong_type(wanted.name, type, "lists of structs");
  if (column.is_leaf()) {
    leaves_.push_back(column.column_index);
    return;
  }
  const SchemaField& element = column.children.at(0);
  for (const std::string& name : wanted.fields) {
    const SchemaField* const field = find(element.children, name);
    if (field == nullptr)
      throw std::runtime_error("column '" + wanted.name + "' has no field '" + name + "', it is of type " +
                               type.ToString());
    if (!holds_strings(*field->field->type()) || !field->is_leaf())
      throw_wrong_type(wanted.name + "." + name, *field->field->type(), "strings");
    leaves_.push_back(field->column_index);
  }
}

bool RowReader::next_row_group() {
  if (row_group_ == metadata_->num_row_groups()) return false;
  const auto group = metadata_->RowGroup(row_group_);
  left_ = group->num_rows();
  double bytes = 0;
  for (const int leaf : leaves_)
    bytes += double(std::max<int64_t>(group->ColumnChunk(leaf)->total_uncompressed_size(), 0));
  const double of_row = std::max(bytes / double(std::max<int64_t>(left_, 1)), 1.0);
  reader_->set_batch_size(std::clamp<int64_t>(int64_t(double(kBatchBytes) / of_row), 1, kBatchRows));
  batches_ = take(reader_->GetRecordBatchReader({row_group_}, leaves_));
  ++row_group_;
  return true;
}

bool RowReader::next_batch() {
  for (auto& wanted : wanted_) wanted.cells.reset();
  batch_.reset();
  while (true) {
    if (batches_) check(batches_->ReadNext(&batch_));
    if (batch_) break;
    if (left_ > 0)
      throw std::runtime_error("row group " + std::to_string(row_group_ - 1) + " lacks " + std::to_string(left_) +
                               " of its rows");
    if (!next_row_group()) return false;
  }
  check(batch_->Validate());
  left_ -= batch_->num_rows();
  if (left_ < 0) throw std::runtime_error("row group " + std::to_string(row_group_ - 1) + " has too many rows");
  for (auto& wanted : wanted_) wanted.cells = make_json_cells(batch_->GetColumnByName(wanted.name), wanted.fields);
  row_ = 0;
  return true;
}

bool RowReader::next(std::string_view& json) {
  while (!batch_ || row_ == batch_->num_rows())
    if (!next_batch()) return false;
  json_.clear();
  for (const auto& wanted : wanted_) {
    json_ += json_.empty() ? '{' : ',';
    append_json_string(json_, wanted.name);
    json_ += ':';
    wanted.cells->append(json_, row_);
  }
  json_ += '}';
  ++row_;
  json = json_;
  return true;
}

}  // namespace zeroshard
