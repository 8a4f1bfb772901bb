#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zeroshard/data.h"
#include "zeroshard/token_file.h"

namespace zeroshard {

// One part of the documents in token files: the training part or the validation part. Normally a document belongs to
// one part as a whole. If validation_share is above 0 but means less than one document, each document of at least two
// tokens is divided between the two parts, and each shorter one belongs to the training part. Immutable.
class Corpus {
 public:
  // Throws the same errors as the constructor of Dataset.
  Corpus(const std::vector<std::string>& files, const DatasetOptions& options);

  // Members are the documents of this part, or this part's pieces of divided documents, in the order of the files. No
  // member is empty.
  int64_t members() const { return int64_t(members_.size()); }
  int64_t tokens() const { return tokens_; }
  int64_t length(uint32_t member) const { return place(member).length; }

  // Appends tokens [begin, begin + count) of a member to `ids`. Appends the target of each of these tokens to
  // `targets`. A target is the member's next token, or kNoTarget if there is no next token or if the next token is not
  // learned. Throws the errors of TokenFile::read().
  void read(uint32_t member, int64_t begin, int64_t count, std::vector<int32_t>& ids,
            std::vector<int32_t>& targets) const;

  // Throw IoError if a file has been truncated since it was opened. check_whole() checks all files. check_whole(member)
  // checks the file of one member. A caller checks before it calls length(), because length() reads a mapped file
  // without a check.
  void check_whole() const;
  void check_whole(uint32_t member) const;

  uint64_t identity() const { return identity_; }  // depends on the files' contents (see TokenFile::identity())

 private:
  struct Place {
    const TokenFile* file;
    int64_t begin, length;  // in tokens of the file
  };
  size_t file_of(int64_t document) const;
  Place place(uint32_t member) const;
  Place place_of_document(int64_t document) const;  // the undivided document
  int64_t held_out(int64_t length) const;  // tokens at the end of a divided document that belong to the validation part
  void open(const std::vector<std::string>& files);
  void choose_members();

  DatasetOptions options_;
  std::vector<TokenFile> files_;
  // By file: the index of the file's first document among the documents of all files. The last entry belongs to no
  // file. It is the number of documents in all files.
  std::vector<int64_t> first_document_;
  bool divided_ = false;           // true: documents of two or more tokens are divided; false: no document is divided
  std::vector<uint32_t> members_;  // by member: index of its document
  int64_t tokens_ = 0;
  uint64_t identity_ = 0;
};

}  // namespace zeroshard
