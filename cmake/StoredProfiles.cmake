# Writes OUTPUT, a source file with the texts of hardware/*.yaml, so that no file is needed at run time. Run as a script:
# cmake -DOUTPUT=stored_profiles.cpp -DPROFILES=a.yaml,b.yaml -P StoredProfiles.cmake
set(entries "")
string(REPLACE "," ";" profiles "${PROFILES}")
foreach(profile IN LISTS profiles)
  get_filename_component(name ${profile} NAME_WE)
  file(READ ${profile} text)
  string(APPEND entries "      {\"${name}\", R\"yaml(${text})yaml\"},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"predict/hardware.h\"

namespace braid {

const std::vector<StoredProfile>& stored_profiles() {
  static const std::vector<StoredProfile> profiles = {
${entries}  };
  return profiles;
}

}  // namespace braid
")
